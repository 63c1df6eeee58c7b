"""running what may hang: fair places for each table, threads, and processes that can be ended"""
