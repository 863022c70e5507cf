// Reads who this process is in its job (net/job_environment.h) from the environment variables that
// launchers and schedulers set. In this order:
//
//   RANK, WORLD_SIZE, …          echelon launch, torchrun, Kubeflow, or set by hand
//   OMPI_COMM_WORLD_RANK, …      Open MPI's mpirun
//   PMI_RANK, MPI_LOCALRANKID    mpiexec of MPICH and Intel MPI
//   PMIX_RANK                    other PMIx launchers; PMIx does not put the size in the
//   environment,
//                                so it comes from WORLD_SIZE
//   SLURM_PROCID, …              srun (not the batch script or an interactive shell: no ranks)
//   JOB_COMPLETION_INDEX         a Kubernetes indexed job, one rank a pod; the size comes from
//                                WORLD_SIZE or ECHELON_NODES (1: the pods are jobs of their own)
//
// Where the ranks meet: ECHELON_RENDEZVOUS=HOST:PORT if it is set; else MASTER_ADDR and MASTER_PORT
// (the port after it when torchrun's agent listens there); else what can be derived: Slurm's first
// host, pod 0, or 127.0.0.1 when all ranks run here, with a port made from the job's id.
//
// Which job it is (job_identity.h): ECHELON_JOB_ID if it is set; else what torchrun, PMIx, Slurm or
// Kubernetes call the job.
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

// The same of other variables; `full_host_name` gives this machine's name with its domain.
JobEnvironment read_environment(const Lookup& lookup,
                                const std::function<std::string()>& full_host_name);

}  // namespace echelon
