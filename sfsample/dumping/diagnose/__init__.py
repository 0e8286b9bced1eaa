"""What a process waits for, worked out from what was seen of it: values in, words out."""
