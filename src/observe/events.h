// What happens in compiles, for whoever listens. The compiler tells `Events`, and knows none of those who subscribed.
#pragma once

#include <string>
#include <vector>

#include "observe/stages.h"
#include "python/bytecode/code.h"

namespace magneto::graph {
struct Graph;
}
namespace magneto::autograd {
struct Joint;
}
namespace magneto::compiler {
struct Compiled;
}

namespace magneto::observe {

/// A graph is compiled, or has been. `direction`: "FORWARDS", "BACKWARDS".
struct GraphCompile {
  const char* direction;
  bool is_done;
};

/// There is a program for a graph of `place`; of one size of it that came often (`specialised`), long after the
/// compile.
struct ProgramMade {
  const std::string& place;
  compiler::Compiled& program;
  bool specialised;
};

/// The graph gets code for one size after the other, because there is none for all.
struct NoCodeForAllSizes {
  const std::string &place, &cause;
};

/// A graph has gradients that are compiled, too.
struct JointGraph {
  const std::string& place;
  const graph::Graph& forward;
  const autograd::Joint& joint;
};

/// It has gradients, and runs call by call under autograd.
struct NoJointGraph {
  const CodePlace& start;
  const std::string& cause;
};

/// Is told what it overrides.
class Observer : public graph::StageSink {
 public:
  bool wanted(graph::Stage) const override { return false; }
  void take(graph::Stage, const std::string&) override {}

  virtual void graph_compile(const GraphCompile&) {}
  virtual void program_made(const ProgramMade&) {}
  virtual void no_code_for_all_sizes(const NoCodeForAllSizes&) {}
  virtual void joint_graph(const JointGraph&) {}
  virtual void no_joint_graph(const NoJointGraph&) {}
};

/// Those who listen to one compile: subscribers of the process first, in the order in which they came.
class Events final : public graph::StageSink {
 public:
  /// Listens to all compiles from now on; outlives them.
  static void subscribe_always(Observer& observer) { always().push_back(&observer); }
  /// Listens to this one; outlives it.
  void subscribe(Observer& observer) { observers_.push_back(&observer); }

  template <typename Event>
  void tell(void (Observer::*what)(const Event&), const Event& event) const {
    for (Observer* observer : observers_) (observer->*what)(event);
  }

  bool wanted(graph::Stage stage) const override {
    return any([&](const Observer& observer) { return observer.wanted(stage); });
  }
  bool insists_on(graph::Stage stage) const override {
    return any([&](const Observer& observer) { return observer.insists_on(stage); });
  }
  bool watches() const override {
    return any([](const Observer& observer) { return observer.watches(); });
  }
  void take(graph::Stage stage, const std::string& text) override {
    for (Observer* observer : observers_) {
      if (observer->wanted(stage)) observer->take(stage, text);
    }
  }

 private:
  static std::vector<Observer*>& always() {
    static auto* observers = new std::vector<Observer*>;
    return *observers;
  }
  template <typename Is>
  bool any(Is is) const {
    for (const Observer* observer : observers_) {
      if (is(*observer)) return true;
    }
    return false;
  }

  std::vector<Observer*> observers_ = always();
};

}  // namespace magneto::observe
