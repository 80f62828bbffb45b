"""The guardrails: pure predicates over resource inputs. They share no code with the program they guard."""
