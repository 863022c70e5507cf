// echelon tokenize encode: a JSON array of ids for each line. Lines are read, encoded and written
// in batches of a few MiB, so memory does not depend on the file.
#include <fmt/format.h>

#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "cli/commands.h"
#include "cli/interrupt.h"
#include "cli/numbers.h"
#include "echelon/base/bytes.h"
#include "echelon/base/error.h"
#include "echelon/base/utf8.h"
#include "echelon/data/records/format.h"
#include "echelon/data/tokenizer/tokenizer.h"

namespace echelon::cli {
namespace {

constexpr std::size_t batch_bytes = 4 << 20;
constexpr std::size_t longest_line = longest_record;
constexpr std::int64_t most_tokens = 1 << 30;

struct Arguments {
  std::string tokenizer, file;
  bool no_special = false;
  std::int64_t max_length = 0;
};

// The lines of a file or of stdin, in batches. Throws Corrupt for a line that is not UTF-8 or too
// long.
class LineBatches {
 public:
  explicit LineBatches(const std::string& path) : name_(path == "-" ? "stdin" : path) {
    file_.reset(path == "-" ? stdin : std::fopen(path.c_str(), "rb"));
    if (!file_) throw InvalidArgument(with_errno("cannot read " + path));
  }

  // The next lines, without their ends; none at the end. Valid until the next call.
  const std::vector<std::string_view>& next() {
    buffer_.erase(0, used_);
    lines_.clear();
    used_ = 0;
    bool has_line = false;  // what the last batch has left has no line feed
    while (!ended_ && (buffer_.size() < batch_bytes || !has_line)) {
      const std::size_t before = buffer_.size();
      read();
      has_line = has_line || buffer_.find('\n', before) != buffer_.npos;
      if (!has_line) require_length(buffer_.size());
    }
    while (used_ < buffer_.size()) {
      const auto end = buffer_.find('\n', used_);
      if (end == buffer_.npos && !ended_) break;
      add(std::string_view(buffer_).substr(used_, std::min(end, buffer_.size()) - used_));
      used_ = end == buffer_.npos ? buffer_.size() : end + 1;
    }
    return lines_;
  }

  // "text.txt, line 7", for a line of the last batch.
  std::string place(std::size_t line) const {
    return fmt::format("{}, line {}", name_, number_ - lines_.size() + line + 1);
  }

 private:
  struct Close {
    void operator()(std::FILE* file) const {
      if (file != stdin) std::fclose(file);
    }
  };

  void read() {
    const std::size_t before = buffer_.size();
    buffer_.resize(before + batch_bytes);
    errno = 0;
    const std::size_t count = std::fread(buffer_.data() + before, 1, batch_bytes, file_.get());
    buffer_.resize(before + count);
    if (std::ferror(file_.get())) throw InvalidArgument(with_errno("cannot read " + name_));
    ended_ = count < batch_bytes && std::feof(file_.get());
  }

  // Of the line after those of the batch.
  void require_length(std::size_t bytes) const {
    if (bytes > longest_line)
      throw Corrupt(fmt::format("{}, line {}: the line has more than {}; split it", name_,
                                number_ + 1, human_bytes(longest_line)));
  }

  void add(std::string_view line) {
    require_length(line.size());
    if (line.ends_with('\r')) line.remove_suffix(1);
    ++number_;
    if (const auto good = utf8_prefix(line); good != line.size())
      throw Corrupt(fmt::format(
          "{}, line {}: byte {} is 0x{:02x}, which is not UTF-8; convert the file, for example with "
          "iconv",
          name_, number_, good + 1, std::uint8_t(line[good])));
    lines_.push_back(line);
  }

  std::string name_;
  std::unique_ptr<std::FILE, Close> file_;
  std::string buffer_;
  std::vector<std::string_view> lines_;
  std::size_t used_ = 0;      // bytes of the buffer that are in lines_
  std::uint64_t number_ = 0;  // of the last line in lines_
  bool ended_ = false;
};

void print(const std::vector<Encoding>& encodings) {
  fmt::memory_buffer out;
  for (const Encoding& one : encodings) {
    out.push_back('[');
    for (std::size_t i = 0; i < one.ids.size(); ++i)
      fmt::format_to(std::back_inserter(out), "{}{}", i > 0 ? "," : "", one.ids[i]);
    out.append(std::string_view("]\n"));
  }
  if (std::fwrite(out.data(), 1, out.size(), stdout) != out.size() || std::fflush(stdout) != 0)
    throw Error(with_errno("cannot write the ids to stdout"));
}

// Throws InvalidArgument that names the line which the tokeniser refuses.
std::vector<Encoding> encode(const Tokenizer& tokenizer, const LineBatches& batches,
                             const std::vector<std::string_view>& lines,
                             const EncodeOptions& options) {
  try {
    return tokenizer.encode_all(lines, options);
  } catch (const InvalidArgument&) {
    // encode_all does not say which line it was: the first one that fails alone.
    for (std::size_t i = 0; i < lines.size(); ++i) {
      try {
        tokenizer.encode(lines[i], options);
      } catch (const InvalidArgument& error) {
        throw InvalidArgument(fmt::format("{}: {}", batches.place(i), error.what()));
      }
    }
    throw;
  }
}

void run(const Arguments& arguments) {
  const Tokenizer tokenizer = Tokenizer::open(arguments.tokenizer);
  const EncodeOptions options{.special = !arguments.no_special, .max_length = arguments.max_length};
  tokenizer.encode("", options);  // throws for a length without room for special tokens
  // What is not UTF-8 is found before anything is written, but in what can be read only once: stdin
  // and pipes.
  std::error_code unreadable;  // is an error of LineBatches
  if (arguments.file != "-" && std::filesystem::is_regular_file(arguments.file, unreadable))
    for (LineBatches batches(arguments.file); !batches.next().empty() && !interrupted().load();) {
    }
  LineBatches batches(arguments.file);
  while (!interrupted().load()) {
    const auto& lines = batches.next();
    if (lines.empty()) break;
    print(encode(tokenizer, batches, lines, options));
  }
}

}  // namespace

void add_tokenize_encode(CLI::App& tokenize, int& exit_code) {
  auto* command = tokenize.add_subcommand("encode", "Print the token ids of each line of a file");
  auto arguments = std::make_shared<Arguments>();
  command
      ->add_option("--tokenizer", arguments->tokenizer,
                   "Folder with tokenizer.json, vocab.txt, or vocab.json and merges.txt")
      ->required()
      ->type_name("DIR");
  command->add_option("file", arguments->file, "UTF-8 text; - for stdin")
      ->required()
      ->type_name("FILE");
  command->add_flag("--no-special", arguments->no_special,
                    "Leave out the tokens that the tokeniser puts around a text");
  command->add_option("--max-length", arguments->max_length, "Cut lines to N tokens; 0: never")
      ->capture_default_str()
      ->check(integer_from(0, most_tokens))
      ->type_name("N");
  command->footer(
      "Prints a JSON array for each line.\n\n"
      "Example:\n  echelon tokenize encode --tokenizer distilbert-base-uncased text.txt");
  command->callback([arguments, &exit_code] {
    end_in_order();
    run(*arguments);
    exit_code = interrupted().load() ? 130 : 0;
  });
}

}  // namespace echelon::cli
