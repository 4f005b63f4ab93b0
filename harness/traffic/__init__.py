"""Open-loop load: a trace replayed on a service, every call when it is due, whatever the service makes of it."""
