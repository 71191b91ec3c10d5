"""Registry: the protocols over HTTP that this service has.

Out:   PROTOCOLS
Never: an import that Serve's proxy would have to hold
"""

from serve.http.protocol import Protocols
from serve.protocols.deepgram.protocol import PROTOCOL as DEEPGRAM
from serve.protocols.elevenlabs.protocol import PROTOCOL as ELEVENLABS
from serve.protocols.openai.protocol import PROTOCOL as OPENAI
from serve.protocols.others.protocol import KOKORO

PROTOCOLS = Protocols(ELEVENLABS, DEEPGRAM, KOKORO, OPENAI)
