"""Tensors and torch: functions, gradients, transforms, hooks, modes, optimizers.

Loading the package registers what its modules know of real values and of calls.
"""

from dynamo.base.loading import load_all

# In the order in which their rows are asked; a `first_rule` is asked before all rows before it.
load_all(__name__, """
    modes contexts tensor wrappers plain_subclasses function_modes modules torch_functions repeating
    compiled handles transforms nested
    autograd_functions checkpointing hooks gradient_calls inference picking averaging breaking
    collective_calls meshes comptime_calls conditional copying devices distributions flex foreach
    loops masked result_dtypes methods number_tensors
    optimizer_steps fused_steps optimizers overriding parameters placing process_groups
    random_state attributes trees triton_kernels typed_tensors unbacked_numbers
    conversions tensor_operators observers
""")
