// The subcommands, one file each. Each function adds a subcommand and the callback that runs it.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

namespace echelon::cli {

void add_train(CLI::App& app, int& exit_code);
// `program` is the words after -- on the command line.
void add_launch(CLI::App& app, int& exit_code, const std::vector<std::string>& program);
void add_bench(CLI::App& app, int& exit_code);
void add_topo(CLI::App& app, int& exit_code);
void add_verify(CLI::App& app, int& exit_code);
void add_export(CLI::App& app, int& exit_code);
void add_evaluate(CLI::App& app, int& exit_code);
void add_generate(CLI::App& app, int& exit_code);
void add_lab(CLI::App& app, int& exit_code);
void add_tokenize(CLI::App& app, int& exit_code);
void add_info(CLI::App& app, int& exit_code);
void add_version(CLI::App& app, int& exit_code);
void add_completion(CLI::App& app, int& exit_code);

// Those of tokenize.
void add_tokenize_train(CLI::App& tokenize, int& exit_code);
void add_tokenize_encode(CLI::App& tokenize, int& exit_code);
void add_tokenize_corpus(CLI::App& tokenize, int& exit_code);
void add_tokenize_check(CLI::App& tokenize, int& exit_code);

}  // namespace echelon::cli
