try:
    import _interpreters as interpreters
except ImportError:
    import _xxsubinterpreters as interpreters

SCRIPT = """
def inner_leaf(count):
    total = 0
    for number in range(count):
        total += number
    return total
def inner(depth):
    return inner_leaf(300) if depth == 0 else inner(depth - 1)
for _ in range(50):
    inner(10)
"""  #X <exec>:inner <exec>:[*] <exec>:<exec> inner:inner inner:inner_leaf


def leaf(count):
    total = 0
    for number in range(count):
        total += number
    return total


def run(interpreter, depth):
    leaf(500)  #> leaf
    if depth:
        return run(interpreter, depth - 1)  #> run
    interpreters.run_string(interpreter, SCRIPT)  #> <exec>


def main():
    kept = interpreters.create()  #> *
    while True:
        for _ in range(20):
            run(kept, 5)  #> run
        fresh = interpreters.create()  #> *
        run(fresh, 3)  #> run
        interpreters.destroy(fresh)  #> *


print("ready", flush=True)
main()  #> main
