#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "echelon/base/options.h"

namespace echelon {

struct DataOptions {
  std::string source = "stdlib";
  std::string validation_source = "";
  double validation = 0.05;
  std::string tokenizer = "";
  std::string text = "";
  std::string pair = "";
  std::string label = "";
  std::string prompt = "";
  std::string answer = "";
  bool header = true;
  std::int64_t length = 0;
  bool pack = true;
  std::vector<std::string> mix = {};

  void fields(Fields& f) {
    f.add(
        "source", source,
        "stdlib: the Python standard library's sources; random: random tokens; else a text file or a folder of them, a file of records (.tsv, .csv, .jsonl), or a corpus of tokens",
        {.known_as = {"train_file", "dataset"}});
    f.add("validation_source", validation_source,
          "data to validate on, of the same kind; empty: a share of the source",
          {.known_as = {"validation_file", "eval_file"}});
    f.add("validation", validation,
          "share of the source kept for validation, if data.validation_source is empty",
          {.minimum = 0, .maximum = 0.5});
    f.add(
        "tokenizer", tokenizer,
        "folder with tokenizer.json, vocab.txt, or vocab.json and merges.txt; bytes: tokens are bytes; empty: the tokeniser of the corpus or beside model.init, or else bytes",
        {.known_as = {"tokenizer_name"}});
    f.add("text", text, "records: column of the text; empty: sentence or text");
    f.add("pair", pair, "records: column of a second text; empty: there is none",
          {.known_as = {"sentence2", "text_pair"}});
    f.add("label", label, "records, task.name=classify: column of the label; empty: label",
          {.known_as = {"label_column_name"}});
    f.add("prompt", prompt,
          "records, task.name=causal: column of the prompt; empty: prompt, if there is one");
    f.add("answer", answer,
          "records, task.name=causal: column of the answer, which alone has a loss; empty: answer "
          "or completion",
          {.known_as = {"completion", "response"}});
    f.add("header", header,
          "TSV and CSV: the first line names the columns; otherwise they are 1, 2, …");
    f.add("length", length,
          "records: longest sample, which longer ones are cut to; 0: model.context",
          {.minimum = 0,
           .maximum = 1e9,
           .unit = "tokens",
           .known_as = {"max_length", "max_seq_length"}});
    f.add(
        "pack", pack,
        "documents of a corpus or of records: several in a sequence, without attention between them; false: each alone, cut to the context");
    f.add(
        "mix", mix,
        "several sources by weight instead of data.source: [\"code/=7\", \"prose/=2\"] takes 7 of "
        "9 samples from code/");
  }
};

}  // namespace echelon
