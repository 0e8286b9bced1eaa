"""Call frame information and the expressions in it."""
