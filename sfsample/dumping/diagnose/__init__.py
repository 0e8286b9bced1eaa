"""Works out from a dump what its threads wait for, and says it in sentences.

Works on the values of a dump only, never on the process.
"""
