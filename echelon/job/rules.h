// Which arguments of `echelon train` are refused, besides the options of a plan (plan/rules.h).
#pragma once

#include <string>
#include <vector>

#include "echelon/job/job.h"
#include "echelon/plan/rules.h"

namespace echelon {

const std::vector<Rule<JobRequest>>& job_rules();

std::string sentence_of(const Rule<JobRequest>& rule, const JobRequest& request, int ranks);

// Throws InvalidArgument with the sentence of the first broken rule of the job or its plan. The
// options of a guest (--join) are those of the job that it joins, which checked them.
void check_rules(const JobRequest& request, int ranks);

}  // namespace echelon
