# libmagneto_aot: programs of magneto.aot_compile in C and C++, without Python. Its objects are the core's own; what of
# the core needs Python is not among them, or has a stand-in in src/aot/library/without_python.cpp. tests/export/test_aot_cpp.py
# keeps it so: the library asks for no symbol of Python's.
set(aot_objects
    aot/file aot/manifest aot/program
    cache/cache cache/claim cache/digest cache/directory cache/identity cache/secret
    codegen/cached_code codegen/kernel codegen/object_loader codegen/perf_map codegen/run
    compiler/compiled_builder compiler/shared_places
    graph/graph graph/literal graph/symbols
    loops/interpreter loops/ir loops/parser loops/printer loops/scalar loops/sharing loops/verifier
    lower/pack lower/program
    observe/faults observe/limits observe/times
    ops/operator
    runtime/device/cpu runtime/device/interpreter runtime/device/memory_pool runtime/device/planted_kernel
    runtime/plan/noted_calls
    runtime/program/attention runtime/program/call_frame runtime/program/compiled_program runtime/program/number_calls runtime/program/out_calls
    runtime/program/own_operators runtime/program/placed_results runtime/program/random_draws
    runtime/program/prepacked runtime/program/promise runtime/program/sized_plan runtime/program/typed_calls
    shapes/expr shapes/expr_text shapes/knowledge shapes/relation shapes/size shapes/size_program
    support/settings)
list(JOIN aot_objects "|" aot_pattern)
set(aot_core "$<FILTER:$<TARGET_OBJECTS:_C>,INCLUDE,/src/(${aot_pattern})\\.cpp\\.o$|/unity_aot_library_[a-z0-9_]+_cxx\\.cxx\\.o$>")

add_library(magneto_aot SHARED src/aot/library/c_api.cpp src/aot/library/without_python.cpp)
add_dependencies(magneto_aot _C)
target_include_directories(magneto_aot PRIVATE src magneto/include)
target_include_directories(magneto_aot SYSTEM PRIVATE ${TORCH_DIR}/include ${TORCH_DIR}/include/torch/csrc/api/include
                                                      ${Python_INCLUDE_DIRS})
target_compile_definitions(magneto_aot PRIVATE MAGNETO_TORCH_VERSION="${TORCH_VERSION}")
target_compile_options(magneto_aot PRIVATE -Wall -Wextra -Wno-unused-parameter -Wno-missing-field-initializers)
target_link_directories(magneto_aot PRIVATE ${TORCH_DIR}/lib)
target_link_libraries(magneto_aot PRIVATE ${aot_core} c10 torch_cpu ${CMAKE_DL_LIBS})
set_property(TARGET magneto_aot PROPERTY LINK_DEPENDS $<TARGET_FILE:_C>)
if(IS_ABSOLUTE "${CXX_LIBRARY}")
  target_link_libraries(magneto_aot PRIVATE ${CXX_LIBRARY})
endif()
# OpenMP's runtime is PyTorch's own.
file(GLOB torch_openmp ${TORCH_DIR}/lib/libgomp*.so*)
target_link_libraries(magneto_aot PRIVATE ${torch_openmp})
# The stand-ins for Python's functions must not be seen by a process that has Python as well.
target_link_options(magneto_aot PRIVATE -Wl,-Bsymbolic -Wl,--version-script=${CMAKE_SOURCE_DIR}/cmake/aot.map)
if(MAGNETO_SANITIZE)
  target_link_options(magneto_aot PRIVATE -fsanitize=${MAGNETO_SANITIZE})
else()
  target_link_options(magneto_aot PRIVATE -Wl,--no-undefined)
endif()
set_target_properties(magneto_aot PROPERTIES BUILD_RPATH ${TORCH_DIR}/lib INSTALL_RPATH "$ORIGIN/../torch/lib")
if(SKBUILD)
  install(TARGETS magneto_aot DESTINATION magneto)
else()
  set_target_properties(magneto_aot PROPERTIES LIBRARY_OUTPUT_DIRECTORY ${MAGNETO_PACKAGE_DIR})
endif()
