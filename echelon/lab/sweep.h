// Bucket size x bandwidth: how long a step of data parallelism waits for its gradients after
// backward, measured on two hosts with a throttled link, and as the cost model predicts it.
//
// Small buckets start early and hide behind backward, but each pays the latency of its messages. A
// bucket holds whole layers, so below the size of a layer nothing changes. Where exchanges take
// much longer than backward, there is little to hide behind, and the size matters less.
#pragma once

#include <string>
#include <vector>

#include "echelon/lab/lab_job.h"
#include "echelon/lab/linked_hosts.h"

namespace echelon {

struct SweepPoint {
  double megabits = 0;    // of the link, a second
  double bucket_mib = 0;  // as the job was told
  int buckets = 0;        // as it cut them
  double step_ms = 0, compute_ms = 0;
  double waited_ms = 0, predicted_ms = 0;  // after backward
};

// Trains a model of twelve narrow layers with every combination, prints a line for each and appends
// it to `points`. `settings` are the other options of a job: its data, tokeniser and task. Throws
// JobFailed; `points` then has those that were measured before.
void sweep(const LabSettings& settings, LabJob::Run how, LinkedHosts& hosts,
           std::vector<SweepPoint>& points);

// One picture for each bandwidth: pictures/buckets-1000mbit.svg. Returns their paths.
std::vector<std::string> write_sweep_pictures(const std::vector<SweepPoint>& points);

}  // namespace echelon
