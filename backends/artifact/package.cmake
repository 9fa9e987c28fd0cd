# @NAME@: a model compiled by tcc, as the target @NAME@::@NAME@.
#
# @NAME@_RUNTIME_FILES lists the files that a program needs at run time. Install them into one folder:
# those of a static library into the program's own folder.
get_filename_component(_tcc_prefix "${CMAKE_CURRENT_LIST_DIR}/../../.." ABSOLUTE)
set(@NAME@_RUNTIME_FILES @RUNTIME_FILES@)
foreach(_tcc_file "${_tcc_prefix}/lib/@FILE@" ${@NAME@_RUNTIME_FILES})
  if(NOT EXISTS "${_tcc_file}")
    set(@NAME@_FOUND FALSE)
    set(@NAME@_NOT_FOUND_MESSAGE "${_tcc_file} is missing: copy the whole package")
    return()
  endif()
endforeach()
string(REPLACE " " ";" _tcc_libraries "@LIBRARIES@")
if("@FILE@" MATCHES "\\.a$")
  set(_tcc_type STATIC)
else()
  set(_tcc_type SHARED)
endif()
if(NOT TARGET @NAME@::@NAME@)
  add_library(@NAME@::@NAME@ ${_tcc_type} IMPORTED)
  set_target_properties(@NAME@::@NAME@ PROPERTIES
    IMPORTED_LOCATION "${_tcc_prefix}/lib/@FILE@"
    IMPORTED_SONAME "@FILE@"
    INTERFACE_LINK_LIBRARIES "${_tcc_libraries}"
    INTERFACE_INCLUDE_DIRECTORIES "${_tcc_prefix}/include")
endif()
unset(_tcc_file)
unset(_tcc_libraries)
unset(_tcc_type)
unset(_tcc_prefix)
