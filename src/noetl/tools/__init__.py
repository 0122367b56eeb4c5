"""One module per tool kind, and the registry. A tool takes a rendered call and returns an outcome.

Tools run in the worker; the fork server and the python children are processes beside it. This
package may import `noetl.playbook`, `noetl.results` (the port) and `noetl.model`. `pipeline`,
`spark` and the code that wires a worker import it.
"""
