import multiprocessing


def leaf(count):
    total = 0
    for number in range(count):
        total += number
    return total


def work(depth):  #<
    if depth == 0:
        return leaf(300)  #> leaf
    return odd(depth - 1)  #> odd


def odd(depth):
    return leaf(50) + work(depth - 1)  #> leaf work


def main():
    with multiprocessing.get_context("fork").Pool(3, maxtasksperchild=2000) as pool:  #> *
        print("ready", flush=True)
        while True:
            pool.map(work, [4, 6, 8, 10] * 25)  #> *


if __name__ == "__main__":
    main()  #> main
