"""The contracts between the processes: messages (generated), methods (generated) and the error taxonomy.

Imports nothing else of Neve.
"""
