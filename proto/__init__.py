"""The contracts between the processes: messages, methods, the error taxonomy and block framing.

This package imports nothing else of Neve.
"""
