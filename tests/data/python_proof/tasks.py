import asyncio
import sys

DEPTH = int(sys.argv[1])


def leaf(count):
    total = 0
    for number in range(count):
        total += number
    return total


async def even(depth):
    if depth == 0:
        return await bottom()  #> bottom
    leaf(20)  #> leaf
    return await odd(depth - 1)  #> odd


async def odd(depth):
    if depth == 0:
        return await bottom()  #> bottom
    return await even(depth - 1)  #> even


async def bottom():
    total = 0
    async for number in numbers(4):  #> numbers *
        total += leaf(300) + number  #> leaf
    await asyncio.sleep(0)  #> *
    return total


async def numbers(count):
    for number in range(count):
        leaf(200)  #> leaf
        yield number
        if number % 2:
            await asyncio.sleep(0)  #> *


async def task():  #<
    while True:
        await even(DEPTH)  #> even
        leaf(100)  #> leaf


async def main():  #<
    await asyncio.gather(*(task() for _ in range(20)))  #> * main.<locals>.<genexpr>


print("ready", flush=True)
asyncio.run(main())  #> *
