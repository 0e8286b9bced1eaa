import ctypes

LIBC = ctypes.CDLL(None)


def leaf(count):
    total = 0
    for number in range(count):
        total += number
    return total


class Meta(type):
    def __new__(cls, name, bases, space):
        leaf(50)  #> leaf
        return super().__new__(cls, name, bases, space)  #> Child.__set_name__ Base.__init_subclass__

    def __call__(cls, *arguments):
        leaf(40)  #> leaf
        return super().__call__(*arguments)  #> Base.__new__ Base.__init__


class Child:
    def __set_name__(self, owner, name):
        leaf(60)  #> leaf


class Base(metaclass=Meta):  #> Base Meta.__new__
    def __new__(cls, *arguments):
        leaf(30)  #> leaf
        return super().__new__(cls)

    def __init__(self, count):
        self.count = deep(count)  #> deep

    def __init_subclass__(cls):
        leaf(45)  #> leaf

    def __getattr__(self, name):
        return leaf(55)  #> leaf


def create():
    class Made(Base):  #> create.<locals>.Made Meta.__new__
        child = Child()

    return Made(3).nothing  #> Meta.__call__ Base.__getattr__


def deep(count):
    return sum(walk(count))  #> walk


def walk(depth):
    yield leaf(30)  #> leaf
    if depth:
        yield from walk(depth - 1)  #> walk
        for value in other(depth - 1):  #> other
            yield value


def other(depth):
    yield recursion(12)  #> recursion
    if depth:
        yield from walk(depth - 1)  #> walk


def recursion(depth):
    return leaf(40) if depth == 0 else recursion(depth - 1)  #> leaf recursion


def compare(left, right):
    leaf(10)  #> leaf
    return left[0] - right[0]


COMPARE = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(ctypes.c_int), ctypes.POINTER(ctypes.c_int))(compare)  #> *


def sort():
    numbers = (ctypes.c_int * 20)(*range(20, 0, -1))
    LIBC.qsort(numbers, 20, 4, COMPARE)  #> compare


def main():
    while True:
        create()  #> create
        sort()  #> sort
        deep(5)  #> deep


print("ready", flush=True)
main()  #> main
