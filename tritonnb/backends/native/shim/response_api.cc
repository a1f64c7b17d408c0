// Responses, their outputs, and the factories that create them after their request was released.

#include "objects.h"

using namespace tritonnb;

namespace {

TRITONSERVER_Error* create(TRITONBACKEND_Response** response, const ChannelPointer& channel) {
  auto* created = new TRITONBACKEND_Response;
  created->channel = channel;
  channel->add_producer();
  *response = created;
  return nullptr;
}

TRITONSERVER_Error* add_parameter(TRITONBACKEND_Response* response, Parameter parameter) {
  response->parameters.push_back(std::move(parameter));
  return nullptr;
}

Parameter parameter_of(const char* name, TRITONSERVER_ParameterType type) {
  Parameter parameter;
  parameter.name = name;
  parameter.type = type;
  return parameter;
}

// Describe a response for tritonnb: pointers into the response, which stays until tritonnb frees it.
void make_view(TRITONBACKEND_Response* response, TRITONSERVER_Error* failure) {
  for (const auto& output : response->outputs) {
    response->tensors.push_back(
        {output.name.c_str(), output.datatype, static_cast<uint32_t>(output.shape.size()), output.shape.data(),
         output.buffer.get(), output.attributes.byte_size});
  }
  for (const auto& parameter : response->parameters) {
    response->parameter_views.push_back(
        {parameter.name.c_str(), parameter.type, parameter.boolean, parameter.integer, parameter.number,
         parameter.text.c_str()});
  }
  auto& view = response->view;
  view.error_code = failure == nullptr ? -1 : failure->code;
  if (failure != nullptr) response->error_message = failure->message;
  view.error_message = response->error_message.c_str();
  view.output_count = static_cast<uint32_t>(response->tensors.size());
  view.outputs = response->tensors.data();
  view.parameter_count = static_cast<uint32_t>(response->parameter_views.size());
  view.parameters = response->parameter_views.data();
}

TRITONSERVER_Error* describe_output(
    TRITONBACKEND_Output* output, const char** name, TRITONSERVER_DataType* datatype, const int64_t** shape,
    uint64_t* dim_count) {
  if (name != nullptr) *name = output->name.c_str();
  *datatype = output->datatype;
  *shape = output->shape.data();
  *dim_count = output->shape.size();
  return nullptr;
}

}  // namespace

#define CHECK_OUTPUT(OUTPUT)                                                                                  \
  do {                                                                                                       \
    if ((OUTPUT) == nullptr) return error(TRITONSERVER_ERROR_INVALID_ARG, "output was nullptr");              \
    TNB_CHECK_RESPONSE((OUTPUT)->response);                                                                  \
  } while (false)

extern "C" {

TRITONSERVER_Error* TRITONBACKEND_ResponseFactoryNew(
    TRITONBACKEND_ResponseFactory** factory, TRITONBACKEND_Request* request) {
  *factory = nullptr;
  TNB_CHECK_REQUEST(request);
  auto* created = new TRITONBACKEND_ResponseFactory;
  created->channel = request->channel;
  created->channel->add_producer();
  *factory = created;
  return nullptr;
}

TRITONSERVER_Error* TRITONBACKEND_ResponseFactoryDelete(TRITONBACKEND_ResponseFactory* factory) {
  TNB_CHECK_FACTORY(factory);
  if (factory->ended.exchange(true)) return misuse(__func__, "the response factory was already deleted");
  const auto channel = std::move(factory->channel);
  channel->drop_producer();
  RecentlyEnded<TRITONBACKEND_ResponseFactory>::add(factory);
  return nullptr;
}

TRITONSERVER_Error* TRITONBACKEND_ResponseFactorySendFlags(
    TRITONBACKEND_ResponseFactory* factory, const uint32_t send_flags) {
  TNB_CHECK_FACTORY(factory);
  auto& channel = *factory->channel;
  std::lock_guard<std::mutex> lock(channel.mutex);
  if (channel.final_sent) return misuse(__func__, "the final flag was already sent");
  if ((send_flags & TRITONSERVER_RESPONSE_COMPLETE_FINAL) == 0) return nullptr;
  // Without `decoupled`, the flag follows the one response; if there is none, the request is answered with an error.
  if (channel.decoupled) {
    channel.final_sent = true;
    channel.post(TNB_EVENT_FLAGS, send_flags);
  }
  return nullptr;
}

TRITONSERVER_Error* TRITONBACKEND_ResponseFactoryIsCancelled(
    TRITONBACKEND_ResponseFactory* factory, bool* is_cancelled) {
  TNB_CHECK_FACTORY(factory);
  *is_cancelled = factory->channel->cancelled;
  return nullptr;
}

TRITONSERVER_Error* TRITONBACKEND_ResponseNew(TRITONBACKEND_Response** response, TRITONBACKEND_Request* request) {
  *response = nullptr;
  TNB_CHECK_REQUEST(request);
  return create(response, request->channel);
}

TRITONSERVER_Error* TRITONBACKEND_ResponseNewFromFactory(
    TRITONBACKEND_Response** response, TRITONBACKEND_ResponseFactory* factory) {
  *response = nullptr;
  TNB_CHECK_FACTORY(factory);
  return create(response, factory->channel);
}

TRITONSERVER_Error* TRITONBACKEND_ResponseDelete(TRITONBACKEND_Response* response) {
  TNB_CHECK_RESPONSE(response);
  if (response->ended.exchange(true)) return misuse(__func__, "the response was already sent or deleted");
  response->channel->drop_producer();
  free_response(response);
  return nullptr;
}

TRITONSERVER_Error* TRITONBACKEND_ResponseSetStringParameter(
    TRITONBACKEND_Response* response, const char* name, const char* value) {
  TNB_CHECK_RESPONSE(response);
  auto parameter = parameter_of(name, TRITONSERVER_PARAMETER_STRING);
  parameter.text = value;
  return add_parameter(response, std::move(parameter));
}

TRITONSERVER_Error* TRITONBACKEND_ResponseSetIntParameter(
    TRITONBACKEND_Response* response, const char* name, const int64_t value) {
  TNB_CHECK_RESPONSE(response);
  auto parameter = parameter_of(name, TRITONSERVER_PARAMETER_INT);
  parameter.integer = value;
  return add_parameter(response, std::move(parameter));
}

TRITONSERVER_Error* TRITONBACKEND_ResponseSetBoolParameter(
    TRITONBACKEND_Response* response, const char* name, const bool value) {
  TNB_CHECK_RESPONSE(response);
  auto parameter = parameter_of(name, TRITONSERVER_PARAMETER_BOOL);
  parameter.boolean = value;
  return add_parameter(response, std::move(parameter));
}

TRITONSERVER_Error* TRITONBACKEND_ResponseSetDoubleParameter(
    TRITONBACKEND_Response* response, const char* name, const double value) {
  TNB_CHECK_RESPONSE(response);
  auto parameter = parameter_of(name, TRITONSERVER_PARAMETER_DOUBLE);
  parameter.number = value;
  return add_parameter(response, std::move(parameter));
}

TRITONSERVER_Error* TRITONBACKEND_ResponseOutput(
    TRITONBACKEND_Response* response, TRITONBACKEND_Output** output, const char* name,
    const TRITONSERVER_DataType datatype, const int64_t* shape, const uint32_t dims_count) {
  TNB_CHECK_RESPONSE(response);
  *output = nullptr;
  for (const auto& other : response->outputs) {
    if (other.name == name) {
      return error(TRITONSERVER_ERROR_INVALID_ARG, std::string("output '") + name + "' already exists in response");
    }
  }
  response->outputs.emplace_back();
  auto& created = response->outputs.back();
  created.response = response;
  created.name = name;
  created.datatype = datatype;
  created.shape.assign(shape, shape + dims_count);
  *output = &created;
  return nullptr;
}

TRITONSERVER_Error* TRITONBACKEND_OutputBuffer(
    TRITONBACKEND_Output* output, void** buffer, const uint64_t buffer_byte_size, TRITONSERVER_MemoryType* memory_type,
    int64_t* memory_type_id) {
  *buffer = nullptr;
  CHECK_OUTPUT(output);
  if (output->buffer != nullptr) return misuse(__func__, "output '" + output->name + "' already has a buffer");
  output->buffer = allocate(buffer_byte_size);
  if (output->buffer == nullptr) {
    return error(TRITONSERVER_ERROR_UNAVAILABLE, "failed to allocate " + std::to_string(buffer_byte_size) + " bytes");
  }
  output->attributes.byte_size = buffer_byte_size;
  *buffer = output->buffer.get();
  *memory_type = TRITONSERVER_MEMORY_CPU;
  *memory_type_id = 0;
  return nullptr;
}

TRITONSERVER_Error* TRITONBACKEND_OutputBufferAttributes(
    TRITONBACKEND_Output* output, TRITONSERVER_BufferAttributes** buffer_attributes) {
  CHECK_OUTPUT(output);
  *buffer_attributes = &output->attributes;
  return nullptr;
}

TRITONSERVER_Error* TRITONBACKEND_InferenceResponseOutput(
    TRITONBACKEND_Response* response, const uint32_t index, const char** name, TRITONSERVER_DataType* datatype,
    const int64_t** shape, uint64_t* dim_count) {
  TNB_CHECK_RESPONSE(response);
  if (index >= response->outputs.size()) {
    return error(TRITONSERVER_ERROR_INVALID_ARG, "out of bounds index " + std::to_string(index));
  }
  return describe_output(&response->outputs[index], name, datatype, shape, dim_count);
}

TRITONSERVER_Error* TRITONBACKEND_InferenceResponseOutputByName(
    TRITONBACKEND_Response* response, const char* name, TRITONSERVER_DataType* datatype, const int64_t** shape,
    uint64_t* dim_count) {
  TNB_CHECK_RESPONSE(response);
  for (auto& output : response->outputs) {
    if (output.name == name) return describe_output(&output, nullptr, datatype, shape, dim_count);
  }
  return error(TRITONSERVER_ERROR_NOT_FOUND, std::string("output name ") + name + " not found in response");
}

TRITONSERVER_Error* TRITONBACKEND_ResponseSend(
    TRITONBACKEND_Response* response, const uint32_t send_flags, TRITONSERVER_Error* error) {
  TNB_CHECK_RESPONSE(response);
  if (response->ended.exchange(true)) return misuse(__func__, "the response was already sent or deleted");
  const auto channel = response->channel;
  const char* problem = nullptr;
  {
    std::lock_guard<std::mutex> lock(channel->mutex);
    if (channel->final_sent) {
      problem = channel->decoupled ? "the final response was already sent"
                                   : "a response was already sent, and the model is not decoupled";
    } else {
      channel->final_sent = !channel->decoupled || (send_flags & TRITONSERVER_RESPONSE_COMPLETE_FINAL) != 0;
      make_view(response, error);
      if (channel->streaming) {
        channel->post(TNB_EVENT_RESPONSE, channel->final_sent ? TRITONSERVER_RESPONSE_COMPLETE_FINAL : 0, response);
      } else {
        channel->collected = response;
      }
    }
  }
  channel->drop_producer();
  if (problem == nullptr) return nullptr;
  free_response(response);
  return misuse(__func__, problem);
}

}  // extern "C"
