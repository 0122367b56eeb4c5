"""The page that people open in a browser: its built files, and the policy under which a browser runs them.

`files` knows what is built and loads it when it is asked for; `answers` answers requests.
Runs in the server. Imported by the server only.
"""
