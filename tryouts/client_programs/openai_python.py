"""OpenAI's own client for Python."""

from openai import OpenAI
from openai_shape import actions_of
from told import run


def _client(address):
    return OpenAI(base_url=f"{address}/v1", api_key="none")


def _ask(address, model, prompt, **more):
    messages = [{"role": "user", "content": prompt}]
    return _client(address).chat.completions.create(model=model, messages=messages, **more)


def responses(address, model, prompt):
    answer = _client(address).responses.create(model=model, input=prompt)
    return {"said": answer.output_text}


def leave(address, model, prompt):
    with _ask(address, model, prompt, stream=True) as chunks:
        next(iter(chunks))
    return {"pieces": 1}


run(*actions_of(_ask), responses, leave)
