"""Says what a thread waits for, and which thread has to act; a dump and a recording give the evidence."""
