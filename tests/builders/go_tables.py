"""The contents of Go tables."""


def functions(table):
    """Yield all functions of a table."""
    vaddr = table.module.first_pc
    while vaddr < table.module.end_pc:
        function = table.function_at(vaddr)
        yield function
        vaddr = function.end
