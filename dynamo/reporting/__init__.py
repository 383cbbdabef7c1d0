"""`dynamo.report()`: one page about all that was compiled. Facts first (`facts`, `kernels`,
`sources`), then pictures and the page; `Report` in `facts` is what stands between the two."""
