"""Makes functions whose names tell the caller, runs them, and drops them."""

SOURCE = "def made_for_{0}(count):\n    total = 0\n    for number in range(count):\n        total += number\n"


def run(number):
    space = {}
    exec(compile(SOURCE.format(number), "<exec>", "exec"), space)  #> <exec>
    return space[f"made_for_{number}"]


CALLERS = {}
for number in range(10):
    source = f"def caller_{number}():\n    run({number})(COUNT)\n"
    exec(compile(source, "<exec>", "exec"), {"run": run, "COUNT": 300 + 50 * number}, CALLERS)  #X caller_*:run caller_*:made_for_*

print("ready", flush=True)
while True:
    for caller in CALLERS.values():
        caller()  #> caller_*
