import sys
import weakref


def leaf(count):
    total = 0
    for number in range(count):
        total += number
    return total


class Dropped:
    def __init__(self, depth):
        self.depth = depth

    def __del__(self):
        leaf(100)  #> leaf
        if self.depth:
            hold(self.depth - 1)  #> hold Dropped.__del__


def hold(depth):
    mine = Dropped(depth)  #> Dropped.__init__ Dropped.__del__
    return leaf(50)  #> leaf Dropped.__del__


def generator():
    mine = Dropped(1)  #> Dropped.__init__
    try:
        yield leaf(50)  #> leaf
    finally:
        leaf(70)  #> leaf Dropped.__del__


def gone(reference):
    leaf(60)  #> leaf


def referred():
    mine = Dropped(0)  #> Dropped.__init__
    watch = weakref.ref(mine, gone)
    del mine  #> Dropped.__del__ gone
    return watch


def main():
    while True:
        hold(3)  #> hold Dropped.__del__
        next(generator())  #> generator Dropped.__del__
        referred()  #> referred
        kept = [Dropped(1), Dropped(2)]  #> Dropped.__init__ Dropped.__del__
        kept = None  #> Dropped.__del__
        try:
            failing()  #> failing Dropped.__del__
        except ValueError:  #> Dropped.__del__
            leaf(30)  #> leaf Dropped.__del__


def failing():
    mine = Dropped(1)  #> Dropped.__init__
    raise ValueError


print("ready", flush=True)
main()  #> main
