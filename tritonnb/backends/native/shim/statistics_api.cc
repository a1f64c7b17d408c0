// Statistics that a backend reports about executions, requests and responses.

#include "objects.h"

using namespace tritonnb;

namespace {

using Statistics = TRITONBACKEND_ModelInstanceResponseStatistics;

}  // namespace

#define CHECK_STATISTICS(STATISTICS) TNB_CHECK(STATISTICS, "response statistics", "deleted")

extern "C" {

TRITONSERVER_Error* TRITONBACKEND_ModelInstanceReportStatistics(
    TRITONBACKEND_ModelInstance* instance, TRITONBACKEND_Request* request, const bool success,
    const uint64_t exec_start_ns, const uint64_t compute_start_ns, const uint64_t compute_end_ns,
    const uint64_t exec_end_ns) {
  (void)instance, (void)exec_start_ns, (void)compute_start_ns, (void)compute_end_ns, (void)exec_end_ns;
  TNB_CHECK_REQUEST(request);
  request->reported = success ? 1 : 0;
  return nullptr;
}

// An execution that is reported in parts lasts from the first start to the last end.
TRITONSERVER_Error* TRITONBACKEND_ModelInstanceReportBatchStatistics(
    TRITONBACKEND_ModelInstance* instance, const uint64_t batch_size, const uint64_t exec_start_ns,
    const uint64_t compute_start_ns, const uint64_t compute_end_ns, const uint64_t exec_end_ns) {
  std::lock_guard<std::mutex> lock(instance->mutex);
  auto& total = instance->statistics;
  if (total.reports++ == 0) {
    total.exec_start_ns = exec_start_ns;
    total.compute_start_ns = compute_start_ns;
  }
  total.batch_size += batch_size;
  total.compute_end_ns = compute_end_ns;
  total.exec_end_ns = exec_end_ns;
  return nullptr;
}

// Statistics of responses are checked and not used: the server measures every response when it passes it on.

TRITONSERVER_Error* TRITONBACKEND_ModelInstanceResponseStatisticsNew(Statistics** response_statistics) {
  *response_statistics = new Statistics;
  return nullptr;
}

TRITONSERVER_Error* TRITONBACKEND_ModelInstanceResponseStatisticsDelete(Statistics* response_statistics) {
  CHECK_STATISTICS(response_statistics);
  response_statistics->ended = true;
  response_statistics->channel.reset();
  RecentlyEnded<Statistics>::add(response_statistics);
  return nullptr;
}

TRITONSERVER_Error* TRITONBACKEND_ModelInstanceResponseStatisticsSetModelInstance(
    Statistics* response_statistics, TRITONBACKEND_ModelInstance* model_instance) {
  CHECK_STATISTICS(response_statistics);
  response_statistics->instance = model_instance;
  return nullptr;
}

TRITONSERVER_Error* TRITONBACKEND_ModelInstanceResponseStatisticsSetResponseFactory(
    Statistics* response_statistics, TRITONBACKEND_ResponseFactory* response_factory) {
  CHECK_STATISTICS(response_statistics);
  TNB_CHECK_FACTORY(response_factory);
  response_statistics->channel = response_factory->channel;
  return nullptr;
}

TRITONSERVER_Error* TRITONBACKEND_ModelInstanceResponseStatisticsSetResponseStart(
    Statistics* response_statistics, uint64_t response_start) {
  CHECK_STATISTICS(response_statistics);
  (void)response_start;
  return nullptr;
}

TRITONSERVER_Error* TRITONBACKEND_ModelInstanceResponseStatisticsSetComputeOutputStart(
    Statistics* response_statistics, uint64_t compute_output_start) {
  CHECK_STATISTICS(response_statistics);
  (void)compute_output_start;
  return nullptr;
}

TRITONSERVER_Error* TRITONBACKEND_ModelInstanceResponseStatisticsSetResponseEnd(
    Statistics* response_statistics, uint64_t response_end) {
  CHECK_STATISTICS(response_statistics);
  (void)response_end;
  return nullptr;
}

TRITONSERVER_Error* TRITONBACKEND_ModelInstanceResponseStatisticsSetError(
    Statistics* response_statistics, TRITONSERVER_Error* error) {
  CHECK_STATISTICS(response_statistics);
  (void)error;
  return nullptr;
}

TRITONSERVER_Error* TRITONBACKEND_ModelInstanceReportResponseStatistics(Statistics* response_statistics) {
  CHECK_STATISTICS(response_statistics);
  const auto& channel = response_statistics->channel;
  if (channel == nullptr || response_statistics->instance == nullptr) {
    return error(TRITONSERVER_ERROR_INVALID_ARG, "response statistics: expected an instance and a response factory");
  }
  return nullptr;
}

}  // extern "C"
