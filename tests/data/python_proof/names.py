LONG = "a" + "я" * 3000


def лист(count):
    total = 0
    for number in range(count):
        total += number
    return total


def кот(count):
    return 犬(count) + лист(100)  #> 犬 лист


def 犬(count):
    return ñandú(count) + лист(100)  #> ñandú лист


def ñandú(count):
    return 𐐀𐐁(count) + лист(100)  #> 𐐀𐐁 лист


def 𐐀𐐁(count):
    return long(count) + лист(100)  #> aяя* лист


names = {"лист": лист}
exec(compile(f"def {LONG}(count):\n    return лист(count)\n", "<exec>", "exec"), names)  #X aяя*:лист
long = names[LONG]
print("ready", flush=True)
while True:
    кот(200)  #> кот
