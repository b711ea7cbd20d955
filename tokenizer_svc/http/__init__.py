"""The HTTP gateway of the front: paths of OpenAI and our own, over the same code as gRPC.

service, server, config            started and stopped; uvicorn; addresses and limits
app, openapi                       every path; the description
connection, watch                  limits on what comes in; work that ends with the client
door, pages, errors, metrics       what every request passes: keys, browsers, errors, counts
json_body, bodies, bodies_*        bodies: bytes, what they share, one a family of paths
to_request, response_request       from a body to gRPC's message (cache_hints, prompt_ids);
field_names                        and its fields' names in refusals
gateway, generations               what paths that generate need; generations for any reply
completions, chat_completions      a file for each path,
responses, response_events         of OpenAI
tokens, preheats, sessions,        and of our own
cancels, models, probes
answers, token_texts               what replies say alike; log probabilities in them
json_reply, sse, direct_write      replies as JSON, as events, as bytes
"""
