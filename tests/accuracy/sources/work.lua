-- Interpreted work: recursion, closures, string patterns, sorting with a callback, coroutines, errors.
local function fib(n) if n < 2 then return n end return fib(n - 1) + fib(n - 2) end
local function fails(n) if n == 0 then error("the end") end return fails(n - 1) + 1 end
while true do
  fib(16)
  local t = {}
  for i = 1, 300 do t[i] = (i * 7919) % 300 end
  table.sort(t, function(a, b) return a < b end)
  local text = table.concat(t, " ")
  text = string.gsub(text, "(%d)(%d*)", function(a, b) return b .. a end)
  local co = coroutine.wrap(function() for w in string.gmatch(text, "%d+") do coroutine.yield(w) end end)
  for _ in co do end
  pcall(fails, 50)
end
