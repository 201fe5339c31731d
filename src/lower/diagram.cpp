#include "lower/diagram.h"

#include <algorithm>
#include <map>
#include <set>

#include "graph/text.h"

namespace magneto::lower {
namespace {

struct Box {
  std::string title, details;
  bool is_kernel = false;
  int row = 0, column = 0;
  std::vector<BufferId> reads, writes;
};

constexpr int kWidth = 220, kHeight = 44, kGapX = 24, kGapY = 48;
constexpr size_t kTitle = 30;

std::string escaped(const std::string& text) {
  std::string out;
  for (const char c : text) {
    if (c == '&') {
      out += "&amp;";
    } else if (c == '<') {
      out += "&lt;";
    } else if (c == '>') {
      out += "&gt;";
    } else if (c == '"') {
      out += "&quot;";
    } else {
      out += c;
    }
  }
  return out;
}

std::string shortened(const std::string& text) {
  return text.size() <= kTitle ? text : text.substr(0, kTitle - 2) + "..";
}

Box box_of(const LoopProgram& program, const KernelStep& step) {
  Box box{.title = step.kernel.name, .details = {}, .is_kernel = true, .reads = {}, .writes = {}};
  for (const std::string& origin : step.kernel.origins) box.details += origin + "\n";
  size_t argument = 0;
  for (const loops::Buffer& buffer : step.kernel.buffers) {
    if (buffer.role == loops::Role::Scratch) continue;
    const BufferId id = step.buffers.at(argument++);
    if (buffer.role != loops::Role::Out) box.reads.push_back(id);
    if (buffer.role != loops::Role::In) box.writes.push_back(id);
  }
  return box;
}

Box box_of(const LoopProgram& program, const ExternStep& step) {
  const graph::Graph& graph = program.functional.graph;
  const graph::AtenNode& node = graph.aten_nodes[step.node];
  Box box{
      .title = graph::operator_text(node.op), .details = graph::origin_text(graph, node), .reads = {}, .writes = {}};
  const auto buffer_of = [&](graph::ValueId value) {
    return value == graph::kNoValue ? kNoBuffer : program.places[value].buffer;
  };
  const auto read = [&](graph::ValueId value) {
    if (const BufferId id = buffer_of(value); id != kNoBuffer) box.reads.push_back(id);
  };
  for (const graph::AtenArg& arg : node.args) {
    if (const auto* one = std::get_if<graph::ValueId>(&arg)) read(*one);
    if (const auto* many = std::get_if<std::vector<graph::ValueId>>(&arg)) {
      for (const graph::ValueId value : *many) read(value);
    }
  }
  for (const graph::ValueId value : node.results) {
    if (const BufferId id = buffer_of(value); id != kNoBuffer) box.writes.push_back(id);
  }
  return box;
}

std::string buffer_text(const LoopProgram& program, BufferId id) {
  const Buffer& buffer = program.buffers[id];
  std::string out = std::string(graph::dtype_name(buffer.dtype)) + "[";
  for (size_t i = 0; i < buffer.sizes.size(); ++i) out += (i ? ", " : "") + text(buffer.sizes[i]);
  return out + "]";
}

}  // namespace

std::string diagram(const LoopProgram& program) {
  std::vector<Box> boxes;
  std::vector<int> columns;                      // how many boxes a row has
  std::map<BufferId, std::vector<size_t>> made;  // the boxes that have written it so far
  std::string lines;
  const auto x = [](const Box& box) { return kGapX + box.column * (kWidth + kGapX); };
  const auto y = [](const Box& box) { return kGapX + box.row * (kHeight + kGapY); };
  for (const Step& step : program.steps) {
    Box box = step.kernel ? box_of(program, *step.kernel) : box_of(program, step.call);
    std::set<std::pair<size_t, BufferId>> from;
    for (const BufferId id : box.reads) {
      if (!made[id].empty()) from.emplace(made[id].back(), id);
    }
    for (const auto& [source, id] : from) box.row = std::max(box.row, boxes[source].row + 1);
    if (columns.size() <= static_cast<size_t>(box.row)) columns.resize(box.row + 1);
    box.column = columns[box.row]++;
    for (const auto& [source, id] : from) {
      const Box& other = boxes[source];
      lines += "<path class=\"edge\" d=\"M" + std::to_string(x(other) + kWidth / 2) + " " +
               std::to_string(y(other) + kHeight) + " L" + std::to_string(x(box) + kWidth / 2) + " " +
               std::to_string(y(box)) + "\"><title>buffer " + std::to_string(id) + " " + buffer_text(program, id) +
               "</title></path>\n";
    }
    for (const BufferId id : box.writes) made[id].push_back(boxes.size());
    boxes.push_back(std::move(box));
  }
  const int most = columns.empty() ? 1 : *std::max_element(columns.begin(), columns.end());
  const int width = kGapX + most * (kWidth + kGapX);
  const int height = kGapX + static_cast<int>(columns.size()) * (kHeight + kGapY);
  std::string out = "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"" + std::to_string(width) + "\" height=\"" +
                    std::to_string(height) +
                    "\" font-family=\"monospace\" font-size=\"11\">\n"
                    "<style>.edge{stroke:#888;fill:none;stroke-width:1.5}.kernel{fill:#dcefdc;stroke:#3a7d3a}"
                    ".call{fill:#dde6f5;stroke:#3a5a8c}</style>\n" +
                    lines;
  for (const Box& box : boxes) {
    std::string details = box.title + "\n" + box.details + "reads:";
    for (const BufferId id : box.reads) details += " " + std::to_string(id) + " " + buffer_text(program, id);
    details += "\nwrites:";
    for (const BufferId id : box.writes) details += " " + std::to_string(id) + " " + buffer_text(program, id);
    out += std::string("<g><rect class=\"") + (box.is_kernel ? "kernel" : "call") + "\" x=\"" + std::to_string(x(box)) +
           "\" y=\"" + std::to_string(y(box)) + "\" width=\"" + std::to_string(kWidth) + "\" height=\"" +
           std::to_string(kHeight) + "\" rx=\"5\"/><text x=\"" + std::to_string(x(box) + 8) + "\" y=\"" +
           std::to_string(y(box) + 18) + "\">" + (box.is_kernel ? "kernel" : "call") + "</text><text x=\"" +
           std::to_string(x(box) + 8) + "\" y=\"" + std::to_string(y(box) + 34) + "\">" +
           escaped(shortened(box.title)) + "</text><title>" + escaped(details) + "</title></g>\n";
  }
  return out + "</svg>\n";
}

}  // namespace magneto::lower
