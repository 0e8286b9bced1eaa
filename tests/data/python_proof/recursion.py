import sys

DEPTH = int(sys.argv[1])
sys.setrecursionlimit(4 * DEPTH + 1000)


def leaf(count):
    total = 0
    for number in range(count):
        total += number
    return total


def first(depth):
    if depth <= 0:
        return leaf(500)  #> leaf
    value = second(depth - 1)  #> second
    return value + 1


def second(depth):
    if depth <= 0:
        return leaf(700)  #> leaf
    return third(depth - 1) + 1  #> third


def third(depth):
    return leaf(5) + first(depth - 1)  #> leaf first


def main():
    while True:
        for depth in (DEPTH, DEPTH // 2, DEPTH):
            first(depth)  #> first


print("ready", flush=True)
main()  #> main
