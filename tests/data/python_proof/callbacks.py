import contextlib
import functools
import re


def leaf(count):
    return sum(number for number in range(count))  #> leaf.<locals>.<genexpr>


def key(value):
    return leaf(value % 50) + value  #> leaf


def replaced(match):  #<
    if len(match.group(0)) > 1:
        return PATTERN.sub(replaced, match.group(0)[1:])  #> replaced
    return str(leaf(60))  #> leaf


PATTERN = re.compile("[a-z]+")
EXEC = compile("for _ in range(3):\n    leaf(100)\n", "<exec>", "exec")  #X <exec>:leaf
EVAL = compile("leaf(100) + ordered(9)", "<exec>", "eval")  #X <exec>:ordered


def ordered(count):
    return len(sorted(range(count), key=key))  #> key


def counted(function):
    @functools.wraps(function)
    def inner(*arguments):
        leaf(20)  #> leaf
        return function(*arguments)  #> decorated

    return inner


@counted
def decorated(count):
    twice = lambda: leaf(count) + leaf(count)  #> leaf
    return twice() + key(3)  #> decorated.<locals>.<lambda> key


@contextlib.contextmanager
def managed(count):  #<
    leaf(count)  #> leaf
    yield count
    leaf(count)  #> leaf


def with_class(count):
    class Body:  #> with_class.<locals>.Body
        value = leaf(count)  #> leaf

        def __init__(self):
            self.own = key(70)  #> key

        @property
        def other(self):
            return leaf(50)  #> leaf

    return Body().other + Body.value  #> with_class.<locals>.Body.__init__ with_class.<locals>.Body.other


def with_manager(count):
    with managed(count) as number:  #> *
        ordered(number)  #> ordered
    re.sub("[a-z]+", replaced, "ab cde")  #> * replaced


def main():
    names = {"leaf": leaf, "ordered": ordered}
    while True:
        ordered(40)  #> ordered
        PATTERN.sub(replaced, "abc de f")  #> replaced
        exec(EXEC, names)  #> <exec>
        eval(EVAL, names)  #> <exec>
        decorated(50)  #> counted.<locals>.inner
        with_class(30)  #> with_class
        with_manager(20)  #> with_manager
        list(map(key, filter(key, range(5))))  #> key


print("ready", flush=True)
main()  #> main
