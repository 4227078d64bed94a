"""The recording proxy: any agent that speaks the OpenAI API plays through it, and every call is in the journal.

A client's key names a session. The session asks the model, with the limits, retries, record and budget that every
other agent here has; the provider's own key never leaves this process. What a request cannot hold is refused, and
never dropped in silence.

`server` is the endpoint, `calls` what is in flight, `wire_in`, `responses` and `wire_out` the forms of requests and
answers, `refusal` those of failures; `session` is an episode with a world, `rooms` where such episodes are found, and
`conversation` an episode without a world.
"""
