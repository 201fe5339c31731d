// Stand-ins for tensors whose geometry is symbolic.
#pragma once

#include <string>
#include <vector>

#include "fake/fake.h"

namespace magneto::fake {

/// The strides in terms of the sizes, where they follow from them: 1 first, then each the one below it times its size.
std::vector<shapes::Expr> strides_in(const at::Tensor& real, const std::vector<shapes::Expr>& sizes);

/// The fake that stands for `real`, as Session::make_input. In this run the geometry is that of `real`.
at::Tensor make_sized_input(Session& session, const at::Tensor& real, std::string name,
                            graph::SymbolicGeometry geometry);

/// Sizes in their final form, when nothing more is assumed: those that are numbers after all are such. The symbols that
/// are used.
std::set<int32_t> settle_sizes(Session& session, graph::Graph& graph);

}  // namespace magneto::fake
