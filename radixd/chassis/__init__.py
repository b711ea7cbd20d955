"""What the services share: settings, logs, channels, gRPC servers, model files.  Floor 2.

settings, setting_sources, command    the schema of options; where they come from; as flags
backends, processors, memory          who may compute; with how many cores; memory that was taken
exposure, tenants, tls                who reaches a server; who he is; certificates
preheat_file, yaml_file, file_watch   files that people write: of prefixes; read strictly; changed
model_source                          the model that `--model` names
gguf_file, safetensors_file           its files
vocabulary, byte_table, grammars      bytes of its token ids; forms of outputs over them
channel, run_folder                   ZeroMQ, and the folder of sockets and locks
grpc_server, open_files               how servers and clients of gRPC are set up
readiness, health_probe               is a server well: asked by us, and by containers
logs, progress                        events; bars
"""
