"""What instructions tell about calls, returns and where functions begin."""
