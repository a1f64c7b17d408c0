// The functions by which tritonnb drives backends; `tritonnb/backends/native/library.py` declares the same for Python.
//
// None of them needs Python's interpreter lock, and no function of the backend interface calls back into Python: what
// happens in a backend's own threads becomes an event, which one thread of tritonnb waits for.

#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "triton/core/tritonbackend.h"

#define TNB_API extern "C" __attribute__((visibility("default")))

struct TnbTensor {
  const char* name;
  int32_t datatype;
  uint32_t dims_count;
  const int64_t* shape;
  const void* data;
  uint64_t byte_size;
};

struct TnbParameter {
  const char* name;
  int32_t type;  // TRITONSERVER_ParameterType
  int32_t boolean;
  int64_t integer;
  double number;
  const char* text;
};

struct TnbResponse {
  int32_t error_code;  // -1 for a success
  uint32_t output_count;
  uint32_t parameter_count;
  uint32_t reserved;
  const char* error_message;
  const TnbTensor* outputs;
  const TnbParameter* parameters;
};

// What the backend reported about one execution. Times are 0 if it reported nothing.
struct TnbBatchStatistics {
  uint64_t reports;
  uint64_t batch_size;
  uint64_t exec_start_ns, compute_start_ns, compute_end_ns, exec_end_ns;
};

// What became of a request in an execution.
struct TnbOutcome {
  int32_t released;
  int32_t rescheduled;
  int32_t reported;  // success as reported: 0 or 1; -1 if the backend did not report it
  int32_t pending;   // responses are events from now on, until a final one
  TRITONBACKEND_Response* response;
  uint32_t state_count;
  uint32_t final_sent;
  const TnbTensor* states;  // those that were updated
};

enum TnbEventKind {
  TNB_EVENT_RESPONSE,   // `response`, with `flags`
  TNB_EVENT_FLAGS,      // `flags` without a response
  TNB_EVENT_ABANDONED,  // nothing is left that could respond
  TNB_EVENT_RELEASED,   // the request was released after its execution
  TNB_EVENT_LOG         // `text`, written at `line` of `file`; `flags` is the level
};

struct TnbEvent {
  int32_t kind;
  uint32_t flags;
  uint64_t token;  // of the request
  TRITONBACKEND_Response* response;
  int64_t line;
  const char* text;
  const char* file;
};

// Backends: the library is opened, and its entry points are called. The caller deletes returned errors.
TNB_API TRITONSERVER_Error* tnb_backend_open(
    const char* name, const char* path, const char* directory, const char* config, TRITONBACKEND_Backend** backend);
TNB_API TRITONSERVER_Error* tnb_backend_close(TRITONBACKEND_Backend* backend);
TNB_API bool tnb_backend_loads_in_parallel(TRITONBACKEND_Backend* backend);
TNB_API uint64_t tnb_backend_preferred_count(TRITONBACKEND_Backend* backend, int32_t kind);

// Models and instances: `initialize` creates the object and calls the backend, `finalize` does the reverse.
TNB_API TRITONBACKEND_Model* tnb_model_new(
    TRITONBACKEND_Backend* backend, const char* name, uint64_t version, const char* directory, bool auto_complete);
TNB_API void tnb_model_configure(TRITONBACKEND_Model* model, const char* config, bool decoupled);
TNB_API void tnb_model_add_state(TRITONBACKEND_Model* model, const char* name);
TNB_API TRITONSERVER_Error* tnb_model_initialize(TRITONBACKEND_Model* model);
TNB_API const char* tnb_model_config(TRITONBACKEND_Model* model);
TNB_API TRITONSERVER_Error* tnb_model_finalize(TRITONBACKEND_Model* model, bool initialized);

TNB_API TRITONBACKEND_ModelInstance* tnb_instance_new(
    TRITONBACKEND_Model* model, const char* name, int32_t kind, int32_t device_id, bool passive, const char* policy);
TNB_API TRITONSERVER_Error* tnb_instance_initialize(TRITONBACKEND_ModelInstance* instance);
TNB_API TRITONSERVER_Error* tnb_instance_execute(
    TRITONBACKEND_ModelInstance* instance, TRITONBACKEND_Request** requests, uint32_t count,
    TnbBatchStatistics* statistics);
TNB_API bool tnb_instance_reports_readiness(TRITONBACKEND_ModelInstance* instance);
TNB_API TRITONSERVER_Error* tnb_instance_ready(TRITONBACKEND_ModelInstance* instance);
TNB_API uint32_t tnb_instance_memory(
    TRITONBACKEND_ModelInstance* instance, uint32_t capacity, int32_t* types, int64_t* devices, uint64_t* sizes);
TNB_API TRITONSERVER_Error* tnb_instance_finalize(TRITONBACKEND_ModelInstance* instance, bool initialized);

// Requests. The memory of inputs must stay until the request is released.
TNB_API TRITONBACKEND_Request* tnb_request_new(
    TRITONBACKEND_Model* model, uint64_t token, const char* id, uint64_t correlation_id, const char* correlation_text,
    uint32_t flags, uint64_t timeout_us);
TNB_API void tnb_request_add_input(
    TRITONBACKEND_Request* request, const char* name, int32_t datatype, const int64_t* shape, uint32_t dims_count,
    const void* data, uint64_t byte_size);
TNB_API void tnb_request_add_output(TRITONBACKEND_Request* request, const char* name);
TNB_API void tnb_request_add_parameter(
    TRITONBACKEND_Request* request, const char* name, int32_t type, int64_t integer, double number, const char* text);
TNB_API void tnb_cancel(uint64_t token);  // of a request that may have ended
TNB_API void tnb_request_collect(TRITONBACKEND_Request* request, bool failed, TnbOutcome* outcome);
TNB_API void tnb_request_finish(TRITONBACKEND_Request* request);

TNB_API const TnbResponse* tnb_response_view(TRITONBACKEND_Response* response);
TNB_API void tnb_response_free(TRITONBACKEND_Response* response);

// Events of a model, or log messages without one. `next` waits, and returns false after `stop`; texts are valid until the
// next call.
TNB_API bool tnb_events_next(TRITONBACKEND_Model* model, TnbEvent* event);
TNB_API void tnb_events_stop(TRITONBACKEND_Model* model);
TNB_API void tnb_log_levels(uint32_t bits);  // bit n: the level n is logged

// Batching libraries.
struct TnbStrategy;
TNB_API TRITONSERVER_Error* tnb_strategy_open(const char* path, TRITONBACKEND_Model* model, TnbStrategy** strategy);
TNB_API TRITONSERVER_Error* tnb_strategy_batch_new(TnbStrategy* strategy, void** batch);
TNB_API TRITONSERVER_Error* tnb_strategy_include(
    TnbStrategy* strategy, TRITONBACKEND_Request* request, void* batch, bool* include);
TNB_API TRITONSERVER_Error* tnb_strategy_batch_end(TnbStrategy* strategy, void* batch);
TNB_API TRITONSERVER_Error* tnb_strategy_close(TnbStrategy* strategy);
