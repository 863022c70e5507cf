// How a model is trained and laid out over ranks: all options of a Trainer, of its memory forecast
// and of the search for a layout.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "echelon/base/options.h"
#include "echelon/models/options.h"
#include "echelon/nn/split_plan.h"
#include "echelon/optim/options.h"
#include "echelon/parallel/data/sync_options.h"
#include "echelon/parallel/options.h"
#include "echelon/parallel/pipeline/options.h"
#include "echelon/parallel/server/options.h"
#include "echelon/parallel/zero/options.h"

namespace echelon {

enum class DeviceKind { cpu, cuda };
constexpr auto names_of(DeviceKind) { return names("cpu", "cuda"); }

enum class Precision { automatic, fp64, fp32, bf16, fp16 };
constexpr auto names_of(Precision) { return names("auto", "fp64", "fp32", "bf16", "fp16"); }

enum class ReduceType { automatic, fp32 };
constexpr auto names_of(ReduceType) { return names("auto", "fp32"); }

struct TrainOptions {
  std::int64_t steps = 3200;
  std::int64_t batch = 8;
  std::int64_t micro_batches = 1;
  std::int64_t ahead = 4;
  std::int64_t sort_batches = 64;
  std::int64_t pad_to = 8;
  std::int64_t seed = 1;
  DeviceKind device = DeviceKind::cpu;
  Precision precision = Precision::automatic;
  ReduceType reduce = ReduceType::automatic;
  double loss_scale = 65536;
  std::int64_t scale_growth = 2000;
  std::int64_t threads = 0;
  Switch graph = Switch::automatic;
  std::int64_t validate_every = 400;
  std::int64_t validate_samples = 512;
  std::int64_t save_every = 0;
  bool save_last = true;
  std::int64_t check_every = 100;
  double memory_mib = 0;
  std::vector<std::string> freeze = {};
  std::string stop_metric = "loss";
  std::int64_t patience = 0;
  bool keep_best = false;

  // Ranks may have different data (--allow-other-data). It must be given at every start, so it is
  // not an option that a run saves.
  bool allow_other_data = false;

  void fields(Fields& f) {
    f.add("steps", steps, "optimiser steps",
          {.minimum = 1, .known_as = {"max_steps", "max_iters"}});
    f.add("batch", batch, "the global batch of a step",
          {.minimum = 1,
           .maximum = 1e9,
           .unit = "sequences",
           .known_as = {"batch_size", "global_batch_size"}});
    f.add("micro_batches", micro_batches,
          "micro-batches per rank and step, as even as possible, one in memory at a time",
          {.minimum = 1, .known_as = {"gradient_accumulation_steps", "grad_accum"}});
    f.add("ahead", ahead,
          "batches that are prepared ahead on other threads; 0: the loop prepares each itself",
          {.minimum = 0,
           .maximum = 1024,
           .unit = "batches",
           .known_as = {"prefetch_factor", "num_workers"}});
    f.add(
        "sort_batches", sort_batches,
        "samples of different lengths: batches whose samples are sorted by length together; 1: not sorted",
        {.minimum = 1, .maximum = 1e6, .unit = "batches", .known_as = {"group_by_length"}});
    f.add(
        "pad_to", pad_to,
        "samples of different lengths are padded to the longest of their batch, rounded up to a multiple of this",
        {.minimum = 1, .maximum = 1e6, .unit = "tokens", .known_as = {"pad_to_multiple_of"}});
    f.add("seed", seed, "seed of initial weights, sample order and dropout", {.minimum = 0});
    f.add("device", device, "device of all tensors");
    f.add(
        "precision", precision,
        "type of parameters, activations and gradients; bf16 and fp16 keep fp32 masters; auto: fp32 on a CPU, bf16 on a GPU",
        {.known_as = {"dtype"}});
    f.add(
        "reduce", reduce,
        "type in which bf16 and fp16 gradients are summed over micro-batches and ranks; auto: their own type");
    f.add("loss_scale", loss_scale,
          "fp16: initial loss scale; halved when gradients are not finite",
          {.minimum = 1, .maximum = 16777216});
    f.add("scale_growth", scale_growth,
          "fp16: good steps in a row after which the loss scale doubles",
          {.minimum = 1, .unit = "steps"});
    f.add("threads", threads, "CPU threads; 0: one for each core", {.minimum = 0, .maximum = 4096});
    f.add("graph", graph, "record a GPU's step as a CUDA graph; auto: if every layer allows it");
    f.add("validate_every", validate_every,
          "steps between validations; 0: never, not even at the end", {.minimum = 0});
    f.add("validate_samples", validate_samples,
          "samples per validation, the same each time; the last validation uses all",
          {.minimum = 1});
    f.add("save_every", save_every,
          "steps between states written for --resume; 0: at the end and when interrupted",
          {.minimum = 0});
    f.add(
        "memory_mib", memory_mib,
        "memory budget of a rank, in MiB; a job that needs more is refused; 0: its part of the free memory",
        {.minimum = 0, .maximum = 1e12});
    f.add("save_last", save_last, "write the state and the weights after the last step");
    f.add(
        "check_every", check_every,
        "several ranks: steps between checks that all hold the same parameters, to the bit; 0: never",
        {.minimum = 0});
    f.add("freeze", freeze,
          "names of parameters that do not train; a * stands for anything, as in \"bert.*\"",
          {.known_as = {"frozen", "freeze_layers"}});
    f.add(
        "stop_metric", stop_metric,
        "score of validations that patience and keep_best compare: loss, or one that a validation shows, as accuracy and f1",
        {.known_as = {"metric_for_best_model", "monitor"}});
    f.add(
        "patience", patience,
        "validations in a row without a better train.stop_metric after which training stops; 0: it does not",
        {.minimum = 0,
         .unit = "validations",
         .known_as = {"early_stopping_patience", "early_stopping"}});
    f.add("keep_best", keep_best, "keep the weights of the best validation in best/ of the run",
          {.known_as = {"load_best_model_at_end", "save_best"}});
  }
};

// All options of a Trainer.
struct TrainerOptions {
  TrainOptions train = {};
  OptimOptions optim = {};
  ParallelOptions parallel = {};
  ZeroOptions zero = {};
  PipelineOptions pipeline = {};
  SplitPlan split = {};  // how parallel.tensor ranks split the model's matrices; not a named option

  void fields(Fields& f) {
    f.section("train", train);
    f.section("optim", optim);
    f.section("parallel", parallel);
    f.section("zero", zero);
    f.section("pipeline", pipeline);
  }
};

// The options that determine the time and the memory of a step.
struct PlanOptions : TrainerOptions {
  ModelOptions model;
  ServerOptions server;
  SyncOptions sync;

  // A number that divides the tokens of every sample, as it is padded (length_divisor). It follows
  // from the data and is not an option. 0: all samples have model.context tokens, or the data are
  // not known yet.
  std::int64_t sample_tokens = 0;
};

}  // namespace echelon
