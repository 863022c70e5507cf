// Reads who this process is in its job (net/job_environment.h) from the environment variables that
// launchers and schedulers set. In this order:
//
//   RANK, WORLD_SIZE, …          echelon launch, torchrun, Kubeflow, or set by hand
//   OMPI_COMM_WORLD_RANK, …      Open MPI's mpirun
//   PMI_RANK, MPI_LOCALRANKID    mpiexec of MPICH and Intel MPI
//   PMIX_RANK                    other PMIx launchers; the size comes from WORLD_SIZE, since PMIx
//                                does not put it in the environment
//   SLURM_PROCID, …              srun (not the batch script or an interactive shell)
//   JOB_COMPLETION_INDEX         a Kubernetes indexed job, one rank per pod; the size comes from
//                                WORLD_SIZE or ECHELON_NODES (1: each pod is a separate job)
//
// The rendezvous: ECHELON_RENDEZVOUS=HOST:PORT if set; else MASTER_ADDR and MASTER_PORT (the next
// port if torchrun's agent listens there); else it is derived: Slurm's first host, pod 0, or
// 127.0.0.1 if all ranks run here, with a port derived from the job id.
//
// The job id (job_identity.h): ECHELON_JOB_ID if set; else the id that torchrun, PMIx, Slurm or
// Kubernetes gave the job.
//
// A variable that is set but empty counts as not set.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "echelon/net/job_environment.h"

namespace echelon {

using Lookup = std::function<std::optional<std::string>(const char* name)>;

// Throws InvalidArgument naming the variable, its value and what is allowed.
JobEnvironment read_environment();

// Reads from the given variables; `full_host_name` returns this machine's name with its domain.
JobEnvironment read_environment(const Lookup& lookup,
                                const std::function<std::string()>& full_host_name);

}  // namespace echelon
