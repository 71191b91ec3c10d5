"""The house: Ray Serve deployments and HTTP around pipeline/. No mathematics.

app.py            builds the application from one YAML's `args:`; start reading here
config.py         what those args may be; config_file.py checks the whole file, Serve's own keys included
api.py            the routes; reply.py one spoken reply; schemas.py bodies; errors.py statuses; door.py admission
gate.py           keys; cross_origin.py web pages; body_reader.py bodies on their way in: what is asked before a route runs
voice_api.py  voice_desk.py  upload.py          voices over HTTP: the routes, how one is made, how a recording is read
handles.py        deployment handles behind the protocols of pipeline/protocols.py
ingress.py  text.py  engine.py  vocoder.py      the four deployments
edge.py           removes headers with which a client could steer Serve; envelope.py says Serve's own errors as ours
early_refusal.py  overload.py     refusals that cost little: in front of Serve, in front of the engine
haproxy.py        what Serve's HAProxy is started through: its limits, its listeners, its errors
"""
