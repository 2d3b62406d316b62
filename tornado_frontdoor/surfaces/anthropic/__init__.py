"""The Anthropic Messages dialect: `/llm/*`, translated to OpenAI chat completions and back.

surface    routes, and one decision rendered in this dialect
request    the top-level fields;  messages, content, tools: what is inside them
response   one whole answer;  stream, events: the same answer piece by piece
relays     who reads an engine's answer;  native: for engines that speak the dialect themselves
errors     every way to fail, in one envelope;  models, counting: the side endpoints
"""

from tornado_frontdoor.surfaces.anthropic.surface import AnthropicSurface

__all__ = ["AnthropicSurface"]
