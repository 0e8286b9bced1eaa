# Interpreted work: recursion, hashes, sort with a block, regular expressions, sprintf, die and eval.
no warnings 'recursion';
sub fib { my $n = shift; return $n < 2 ? $n : fib($n - 1) + fib($n - 2) }
sub fails { my $n = shift; die "the end" unless $n; return fails($n - 1) + 1 }
while (1) {
    fib(14);
    my %h = map { $_ * 7919 % 500 => $_ } 1 .. 500;
    my @k = sort { $h{$a} <=> $h{$b} } keys %h;
    my $t = join " ", map { sprintf "%05.2f", $_ / 7 } @k;
    $t =~ s/(\d)(\d+)\.(\d*?)5/$2$1/g;
    my $c = () = $t =~ /(\d+)(?=\s)/g;
    eval { fails(30) };
}
