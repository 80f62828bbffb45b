"""Do the platform's public names answer from where people are, and if not: the names, the way there, or the platform?"""
