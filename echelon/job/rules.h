// What the arguments of `echelon train` may not be, beside the options of a plan (plan/rules.h).
#pragma once

#include <string>
#include <vector>

#include "echelon/job/job.h"
#include "echelon/plan/rules.h"

namespace echelon {

const std::vector<Rule<JobRequest>>& job_rules();

std::string sentence_of(const Rule<JobRequest>& rule, const JobRequest& request, int ranks);

// Throws InvalidArgument with the sentence of the first rule that is broken, of a job's own or of
// its plan's. A guest (--join) has the options of the job that it joins, which were checked there.
void check_rules(const JobRequest& request, int ranks);

}  // namespace echelon
