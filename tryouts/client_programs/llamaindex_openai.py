"""LlamaIndex over OpenAI's dialect."""

import json

from llama_index.core.llms import ChatMessage
from llama_index.core.tools import FunctionTool
from llama_index.llms.openai_like import OpenAILike
from pydantic import BaseModel
from told import run


def _model(address, model):
    return OpenAILike(
        api_base=f"{address}/v1",
        model=model,
        api_key="none",
        is_chat_model=True,
        is_function_calling_model=True,
        should_use_structured_outputs=True,
    )


def plain(address, model, prompt):
    answer = _model(address, model).chat([ChatMessage(role="user", content=prompt)])
    return {"said": answer.message.content}


def stream(address, model, prompt):
    answers = _model(address, model).stream_chat([ChatMessage(role="user", content=prompt)])
    pieces = [answer.delta for answer in answers if answer.delta]
    return {"said": "".join(pieces), "pieces": len(pieces)}


def tools(address, model, prompt):
    def weather(city: str) -> str:
        """Tell the weather in a city."""
        return city

    llm = _model(address, model)
    answer = llm.chat_with_tools([FunctionTool.from_defaults(weather)], user_msg=prompt)
    (call,) = llm.get_tool_calls_from_response(answer)
    return {"call": [call.tool_name, call.tool_kwargs]}


def structured(address, model, prompt):
    class _Weather(BaseModel):
        city: str
        degrees: int

    asked = _model(address, model).as_structured_llm(_Weather)
    answer = asked.chat([ChatMessage(role="user", content=prompt)])
    return {"value": json.loads(answer.message.content)}


def leave(address, model, prompt):
    answers = _model(address, model).stream_chat([ChatMessage(role="user", content=prompt)])
    next(answers)
    answers.close()
    return {"pieces": 1}


run(plain, stream, tools, structured, leave)
